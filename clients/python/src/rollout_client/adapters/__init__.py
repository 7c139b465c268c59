"""Adapters that a trainer's own package talks to. Each needs that package, or a part of it.

They are imported one by one, such as `rollout_client.adapters.verifiers`.
"""
