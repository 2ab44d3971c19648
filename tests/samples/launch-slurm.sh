#!/bin/bash
#SBATCH --gpus-per-node=8
set -euo pipefail
source /opt/env.sh
export NCCL_P2P_LEVEL=SYS
MODEL=moonshotai/Kimi-K2.6
# sglang serve --model-path other
srun --ntasks=1 --gpus=8 torchrun --nproc-per-node 8 -m sglang.launch_server \
    --model-path "$MODEL" --tp-size 8 --kv-cache-dtype fp8_e4m3 \
    --mem-fraction-static ${FRACTION:-0.92} > server.log 2>&1 &
wait
