"""Deployment -> what every rank holds, and which group talks over which links."""

from perfmodel.placement.cache import kv_bytes_per_token_layer, state_bytes_per_sequence_layer, window_of
from perfmodel.placement.inventory import parameter_count
from perfmodel.placement.links import Links, links_of
from perfmodel.placement.place import Placement, place, text_bytes, weight_width
from perfmodel.placement.protocols import Protocol

__all__ = ["Links", "Placement", "Protocol", "kv_bytes_per_token_layer", "links_of", "parameter_count", "place",
           "state_bytes_per_sequence_layer", "text_bytes", "weight_width", "window_of"]
