"""model x node x strategy x engine -> Deployment."""

from perfmodel.deployment.deploy import Deployment, deploy, strategy_name, varied

__all__ = ["Deployment", "deploy", "strategy_name", "varied"]
