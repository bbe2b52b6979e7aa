"""Finding the engine and gateway settings that keep the SLA.

In: a `ClusterSpec`, planned traffic, a space of settings. Out: ranked trials, each with its figures and, for every
loser, the reason it lost. Trials run in the twin. Never touches a running cluster.
"""
