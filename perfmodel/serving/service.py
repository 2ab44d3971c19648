"""What a service adds to one engine copy: images, a router, KV caches kept elsewhere, limits; and the words for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.costs.disaggregation import kv_transfer_s, router_imbalance, share_within
from perfmodel.deployment import Deployment
from perfmodel.engines.rules import KV_BYTES
from perfmodel.errors import BadInput, IllegalDeployment, is_number, one_of, shown
from perfmodel.serving.curve import Band, ServingCurve
from perfmodel.serving.lengths import Lengths

ROUTERS = ("even", "round-robin", "least-loaded")
TIERS = ("host", "disk")
# Where a node file says nothing: PCIe 5.0 x16 carries 63 GB/s before headers, engines reach about 50; an NVMe disk
# reads about 7 GB/s (PCIe 4.0 x4, datasheets of data-centre drives). Kind: assumed.
HOST_BPS, DISK_BPS, TRANSFER_S = 50e9, 7e9, 1e-3


@dataclass(frozen=True, slots=True)
class Service:
    """Options of a question beside lengths and load; the defaults add nothing."""

    images: float = 0.0  # a request
    tokens_per_image: float | None = None
    router: str = "even"
    offload_hit_rate: float = 0.0  # share of a prompt whose KV comes from the tier
    offload_from: str = "host"
    offload_bandwidth: float | None = None  # of one GPU [B/s]
    ttft_limit_s: float | None = None
    tpot_limit_s: float | None = None

    def check(self, deployment: Deployment) -> None:
        """Refuse what makes no sense, and what the engine cannot do."""
        if not isinstance(deployment, Deployment):
            raise BadInput(f"speed is asked of a deployment, not of {shown(deployment)}", ["pm.deploy(...) makes one"])
        one_of("router", self.router, ROUTERS)
        one_of("place of offloaded KV", self.offload_from, TIERS)
        for name, least, most in (("images", 0, 1e4), ("tokens_per_image", 1, 1e6), ("offload_hit_rate", 0, 0.999),
                                  ("offload_bandwidth", 1e6, 1e13), ("ttft_limit_s", 1e-6, 1e6),
                                  ("tpot_limit_s", 1e-6, 1e6)):  # fmt: skip
            value = getattr(self, name)
            optional = name not in ("images", "offload_hit_rate")
            if not (optional and value is None) and not (is_number(value) and least <= value <= most):
                raise BadInput(f"{name} must lie between {least:g} and {most:g}, not {shown(value)}")
        if self.images and deployment.model.vision is None:
            raise IllegalDeployment(f"{deployment.model.name} takes no images")
        if self.images and self.tokens_per_image is None:
            raise BadInput("images need tokens_per_image; the catalog does not state it", ["--tokens-per-image 1000"])
        options = deployment.options
        if self.offload_hit_rate:
            offloads(deployment)
            if self.offload_hit_rate + options.prefix_hit_rate >= 1:
                raise BadInput("prefix_hit_rate and offload_hit_rate together must stay below 1")


def offloads(deployment: Deployment) -> None:
    """Refuse engines that keep no KV outside the GPUs."""
    from perfmodel.engines.versions import at_least

    options = deployment.options
    if options.engine == "vllm" and not at_least(options.version, "0.11.2"):
        raise IllegalDeployment(f"vLLM {options.version} has no --kv-offloading-size (since 0.11.2)")


def prompt_of(service: Service, inputs: Lengths) -> tuple[Lengths, list[str]]:
    """Prompt lengths with the tokens of images."""
    more = service.images * (service.tokens_per_image or 0.0)
    if not more:
        return inputs, []
    mean = inputs.mean + more
    what = f"images: {service.images:g} of {service.tokens_per_image:g} tokens a request"
    note = f"{what}; the encoder's own time is not counted"
    return Lengths(mean, inputs.spread * inputs.mean / mean, f"{inputs.words} + images"), [note]


def engine_of(service: Service, deployment: Deployment) -> Deployment:
    """The deployment whose prompts are found for the most part: what comes from another tier is not computed."""
    if not service.offload_hit_rate:
        return deployment
    options = deployment.options
    return replace(
        deployment, options=replace(options, prefix_hit_rate=options.prefix_hit_rate + service.offload_hit_rate)
    )


def kv_bytes_per_token(deployment: Deployment) -> float:
    """KV cache of one token over all layers, held once. [B]"""
    facts = deployment.facts
    return float(facts.kv_values_per_token_layer * facts.layers * KV_BYTES[deployment.options.kv_dtype])


def host_link_Bps(deployment: Deployment) -> tuple[float, str]:
    """Bandwidth between one GPU and its host, and where it comes from. [B/s]"""
    topology = deployment.node.topology
    ends = [(link, {topology.vertices[link.a], topology.vertices[link.b]}) for link in topology.links]
    speeds = [float(topology.link_kinds[link.kind].bandwidth.value or 0.0) * link.count for link, kinds in ends
              if "gpu" in kinds and kinds & {"root", "switch", "socket"}]  # fmt: skip
    if speeds and min(speeds) > 0:
        return min(speeds), f"{deployment.node.name}'s own links"
    return HOST_BPS, "PCIe 5.0 x16, assumed"


def with_offload(curve: ServingCurve, service: Service, deployment: Deployment, inputs: Lengths) -> ServingCurve:
    """TTFT waits for the KV that comes from host memory or a disk; every GPU loads its own part of it."""
    if not service.offload_hit_rate:
        return curve
    link, source = host_link_Bps(deployment)
    speed = link * min(deployment.options.world, deployment.node.count)
    if service.offload_from == "disk":
        speed, source = min(speed, DISK_BPS), f"one disk of {DISK_BPS / 1e9:g} GB/s, assumed"
    if service.offload_bandwidth is not None:
        speed, source = service.offload_bandwidth, "as given"
    tokens = service.offload_hit_rate * inputs.mean
    wait = kv_transfer_s(tokens, kv_bytes_per_token(deployment), speed, TRANSFER_S)
    note = (f"{service.offload_hit_rate:.0%} of a prompt's KV comes from {service.offload_from} at "
            f"{speed / 1e9:.3g} GB/s ({source}): {wait * 1e3:.1f} ms before its first token")  # fmt: skip
    return _later(curve, wait, note)


def with_router(curve: ServingCurve, busiest: ServingCurve, service: Service, outputs: Lengths) -> ServingCurve:
    """Attention groups step together, so that the fullest sets the pace; replicas only make some requests slower."""
    options = curve.deployment.options
    if service.router == "even" or max(options.dp_attention, options.dp) == 1:
        return curve
    factor = imbalance(service, curve, outputs)
    note = f"router {service.router}: the fullest place holds {float(np.max(factor)):.2f} times the mean"
    slower = busiest.tpot_s[0] / curve.tpot_s[0]
    if options.dp_attention > 1:
        tpot, rate = _times(curve.tpot_s, slower), _times(curve.output_tok_s, 1 / slower)
        parts = {**curve.parts, "wait for the fullest group": curve.tpot_s[0] * (slower - 1)}
        curve = replace(curve, tpot_s=tpot, output_tok_s=rate, parts=parts)
    tails = {name: values * (slower if name.startswith("tpot") else 1.0) for name, values in curve.percentiles.items()}
    return replace(curve, percentiles=tails, assumptions=(*curve.assumptions, note))


def imbalance(service: Service, curve: ServingCurve, outputs: Lengths) -> np.ndarray:
    """Requests in the fullest place over the mean."""
    options = curve.deployment.options
    places = options.dp_attention if options.dp_attention > 1 else options.dp
    each = np.maximum(curve.running / places, 1.0)
    if service.router == "least-loaded":
        return np.ceil(each) / each
    return np.asarray(router_imbalance(places, each, outputs.spread))


def with_limits(curve: ServingCurve, service: Service, outputs: Lengths) -> ServingCurve:
    """Requests a second that keep the limits."""
    if service.ttft_limit_s is None and service.tpot_limit_s is None:
        return curve
    share = np.ones(len(curve.concurrency))
    asked = (("ttft", service.ttft_limit_s, curve.ttft_s), ("tpot", service.tpot_limit_s, curve.tpot_s))
    for name, limit, band in asked:
        if limit is not None:
            high = np.maximum(np.asarray(curve.percentiles.get(f"{name}_p95", band[0])), band[0])
            with np.errstate(invalid="ignore"):
                share = share * np.nan_to_num(share_within(limit, band[0], high))
    note = "goodput: TTFT and TPOT lognormal through median and p95, independent of each other"
    good = share * np.asarray(curve.output_tok_s[0]) / outputs.mean
    return replace(curve, goodput_req_s=good, good_share=share,
                   assumptions=(*curve.assumptions, note))  # fmt: skip


def _times(band: Band, factor: Any) -> Band:
    return band[0] * factor, band[1] * factor, band[2] * factor


def _later(curve: ServingCurve, wait: Any, note: str) -> ServingCurve:
    """Every first token that much later."""
    ttft: Band = (curve.ttft_s[0] + wait, curve.ttft_s[1] + wait, curve.ttft_s[2] + wait)
    tails = {name: values + wait * name.startswith("ttft") for name, values in curve.percentiles.items()}
    return replace(curve, ttft_s=ttft, percentiles=tails, assumptions=(*curve.assumptions, note))
