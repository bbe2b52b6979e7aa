"""Sans-IO protocols: OpenAI bodies, server-sent events, Prometheus text, HTTP heads.

In: bytes. Out: small typed values, or the bytes to send. Nothing here opens a socket, reads a clock or decides
anything about a request. Not to be touched: bytes that are passed through; a splitter's events join to exactly
what it was fed.
"""
