"""Two published launch scripts, as people still copy them: what lint, its tests and its guide begin with."""

VLLM = """\
#!/usr/bin/env bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_NET_GDR_LEVEL=5
export NCCL_BUFFSIZE=8388608
export VLLM_ATTENTION_BACKEND=FLASHINFER
export VLLM_WORKER_MULTIPROC_METHOD=spawn

python3 -m vllm.entrypoints.openai.api_server \\
  --model /models/Meta-Llama-3-70B-Instruct \\
  --tensor-parallel-size 8 \\
  --dtype bfloat16 \\
  --kv-cache-dtype fp8 \\
  --gpu-memory-utilization 0.92 \\
  --max-num-batched-tokens 8192 \\
  --max-num-seqs 512 \\
  --max-model-len 8192 \\
  --enable-chunked-prefill true \\
  --block-size 16 \\
  --swap-space 32 \\
  --disable-log-requests \\
  --port 8000
"""

SGLANG = """\
export NCCL_NET_GDR_LEVEL=5
export CUDA_MODULE_LOADING=LAZY

python3 -m sglang.launch_server \\
  --model-path /models/Meta-Llama-3-70B-Instruct \\
  --tp 8 \\
  --mem-fraction-static 0.90 \\
  --chunked-prefill-size 1024 \\
  --max-running-requests 512 \\
  --schedule-policy lpm \\
  --enable-radix-cache \\
  --port 30000
"""
