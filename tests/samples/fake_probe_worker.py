"""Stands in for ``perfmodel.probe.worker`` where there is no GPU: same words, made-up times. FAKE says how it fails."""

import json
import os
import sys
import time

FACTS = {
    "torch": "2.11.0+cu130", "cuda": "13.0", "hip": "", "devices": 2, "gpus": ["NVIDIA H200", "NVIDIA H200"],
    "capability": 9.0, "sms": 132, "memory_bytes": 150109880320, "l2_bytes": 62914560, "memory_clock_kHz": 3201000,
    "memory_bus_bits": 6016, "nccl": "2.28.9", "free_bytes": 149557477376,
    "peer_access": [[True, True], [True, True]], "occupied": [],
}  # fmt: skip


def say(message: dict) -> None:
    if os.environ["RANK"] == "0":
        print("perfmodel-probe " + json.dumps(message), flush=True)


def main() -> None:
    job, fault = json.load(sys.stdin), os.environ.get("FAKE", "")
    if job.get("facts"):
        name = os.environ.get("FAKE_GPU", "NVIDIA H200")
        none = fault == "no gpu"
        say({"facts": FACTS | ({"devices": 0, "gpus": []} if none else {"gpus": [name, name]})})
        return
    print("NCCL INFO a line of somebody else")
    for index, task in enumerate(job["tasks"]):
        say({"begin": index})
        if fault == "hang" and task["table"] == "launch" and task["mode"] == "graph":
            time.sleep(60)
        if fault == "crash" and task["table"] == "all_gather" and os.environ["RANK"] == "1":
            print("RuntimeError: rank 1 has had enough", file=sys.stderr)
            os._exit(3)
        if fault == "crash" and task["table"] == "all_gather":
            time.sleep(60)
        if fault == "error" and task["table"] == "gemm" and task.get("m") == 16:
            say({"done": index, "error": "RuntimeError: no such kernel"})
            continue
        us = 5.0 + task.get("message_bytes", 0) / 3e5
        result = {"us": us, "us_min": us, "us_max": us, "iterations": 5, "repeats": 3, "l2": "cold"}
        say({"done": index, "result": result})


if __name__ == "__main__":
    main()
