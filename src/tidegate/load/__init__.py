"""The open-loop load driver: sends planned requests over real sockets and records what became of them.

In: `PlannedRequest`s and a `Target`. Out: a `RunRecord`. The schedule is absolute and fixed before the run; a slow
server never slows the sending. Not to be touched from here: figures (traffic), how things are shown (report).
"""
