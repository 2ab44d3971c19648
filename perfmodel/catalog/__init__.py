"""The catalog: YAML in `hardware/` and `models/`, and Hugging Face checkpoints -> frozen nouns. Knows no formula."""

from perfmodel.catalog.architecture import (
    NONE,
    Block,
    Compressed,
    Dense,
    Format,
    Gqa,
    Indexer,
    Linear,
    Mamba2,
    Mla,
    ModelArch,
    Moe,
    Mtp,
    Norms,
    PerLayerInput,
    Vision,
)
from perfmodel.catalog.base import Figure, Source, sourced
from perfmodel.catalog.load import load_accelerator, load_calibration, load_fabric, load_model, load_node, merge
from perfmodel.catalog.lookup import name_of, names
from perfmodel.catalog.observations import Observation, load_kernels, load_observations
from perfmodel.catalog.schema import (
    Accelerator,
    AllReduce,
    Calibration,
    Collectives,
    Fabric,
    Node,
    Parameter,
    Topology,
)

__all__ = [
    "NONE", "Accelerator", "AllReduce", "Block", "Calibration", "Collectives", "Compressed", "Dense", "Fabric",
    "Figure",
    "Format", "Gqa", "Indexer", "Linear", "Mamba2", "Mla", "ModelArch", "Moe", "Mtp", "Node", "Norms", "Observation",
    "Parameter", "PerLayerInput", "Source", "Topology", "Vision", "load_accelerator", "load_calibration", "load_fabric",
    "load_kernels", "load_model", "load_node", "load_observations", "merge", "name_of", "names", "sourced",
]  # fmt: skip
