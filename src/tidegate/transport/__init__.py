"""HTTP/1.1 over asyncio: server connections, client connections and their pool. Used by gateway, emulated engine, load.

In: bytes from sockets, answers from an `Application`, requests for an `AnswerSink`. Out: bytes, and calls of those
two. Everything runs on one event loop and in callbacks: no tasks, no awaits and no timers per request or chunk.
Not to be touched from here: policy, and what the bytes of a body mean.
"""
