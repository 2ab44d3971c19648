"""Questions about answers: what is wrong with a launch, where a figure comes from, how close the model is,
what another machine would bring."""

from perfmodel.insight.doctor import Doctor, doctor
from perfmodel.insight.explain import Explained, explain
from perfmodel.insight.whatif import WhatIf, whatif

__all__ = ["Doctor", "Explained", "WhatIf", "doctor", "explain", "whatif"]
