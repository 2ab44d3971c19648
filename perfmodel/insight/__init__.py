"""Questions about answers: what is wrong with a launch, where a figure comes from, how close the model is."""

from perfmodel.insight.doctor import Doctor, doctor
from perfmodel.insight.explain import Explained, explain

__all__ = ["Doctor", "Explained", "doctor", "explain"]
