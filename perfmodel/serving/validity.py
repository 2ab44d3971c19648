"""Where the closed forms claim to agree with the simulator within 5 %, or 10 %."""

from __future__ import annotations

import numpy as np

from perfmodel.deployment import Deployment
from perfmodel.engines.scheduling import scheduling
from perfmodel.placement import place
from perfmodel.serving.lengths import Lengths
from perfmodel.step.memory import kv_pool

CLAIM = "closed form: steady state, within {0:.0%} of the simulator in tokens/s and TPOT"
# Share of a forward's tokens that prompts may take where they run with decode tokens: whole prompts, and those that are
# cut. Kind: derived, from the simulator: 5 % are passed at 0.71 and at 0.11 (Llama 3.1 8B, vLLM 0.6.6 and 0.33, budgets
# of 512 to 2,048 tokens, prompts of 500 to 6,000, answers of 100 to 1,024, 8 and 64 running).
CROWDED, CROWDED_CUT = 0.7, 0.05
WITHIN, WITHIN_GROUPS = 0.05, 0.10  # with attention groups prompts overlap by chance


def outside(deployment: Deployment, running: np.ndarray, inputs: Lengths, outputs: Lengths) -> list[str]:
    """Why the closed form claims nothing here; empty where it does.

    It has no preemptions, and it takes prompts that are cut across attention groups to overlap freely.
    """
    options, found = deployment.options, []
    rules = scheduling(deployment.engine, options)
    pool = kv_pool(place(deployment))
    longest = inputs.mean + outputs.mean * (1 + outputs.spread)
    if not rules.own and pool.tokens > 0 and np.max(running) / options.dp * longest > pool.tokens_total:
        found.append("answers outgrow the KV pool, and requests are thrown out and computed again")
    if options.dp_attention > 1 and inputs.mean * (1 - options.prefix_hit_rate) > rules.budget:
        found.append(f"prompts are longer than the {rules.budget:,} tokens of a forward of one attention group")
    prompt, many = inputs.mean * (1 - options.prefix_hit_rate), float(np.max(running)) / options.dp
    many /= deployment.engine.slots(options)
    crowd = many * prompt / outputs.mean / max(rules.budget - many, 1.0)
    if rules.mixes and crowd > (CROWDED if prompt <= rules.budget else CROWDED_CUT):
        found.append(f"prompts take {crowd:.0%} of the {rules.budget:,} tokens of a forward, and wait for each other")
    if options.pp > 1 and prompt > rules.budget:                # by up to 30 % of the rate with two stages
        found.append(f"prompts are cut into forwards of {rules.budget:,} tokens, which the simulator puts through the "
                     "pipeline one after another")
    if rules.mixes and not options.cuda_graphs:                 # by up to 7 % in the simulator
        found.append("without CUDA graphs the host paces the forwards that prompts share with decode tokens")
    return found


def claim(deployment: Deployment, running: np.ndarray, inputs: Lengths, outputs: Lengths) -> str:
    """One line for the assumptions of a curve."""
    reasons = outside(deployment, running, inputs, outputs)
    said = CLAIM.format(WITHIN if deployment.options.dp_attention == 1 else WITHIN_GROUPS)
    return f"{said}; not here: {'; '.join(reasons)} (perfmodel simulate)" if reasons else said
