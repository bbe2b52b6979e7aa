"""Shipped fakes for tests: playbooks for the gate, in-memory transports, engines that misbehave on purpose.

May import anything; nothing but tests imports it.
"""
