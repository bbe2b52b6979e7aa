"""Step-time tables as package data. In: nothing. Out: files, read by `twin.steptable`. See README.md for the source."""
