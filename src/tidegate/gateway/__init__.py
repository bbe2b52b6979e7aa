"""The data path: a request's life from socket to socket.

In: HTTP requests from clients, answers from engines, a `ClusterSpec`, a clock and a network. Out: the engines' bytes,
untouched, or one typed refusal. It executes the commands of `policy.Gate` and decides nothing itself; what it may
not do is hold more than a bounded piece of anything, or block.
"""
