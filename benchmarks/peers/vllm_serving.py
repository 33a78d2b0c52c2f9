"""Runs in .venv-vllm: serves a model in bf16 and asks it once. `vllm_serving.py MODEL KV_BYTES PROMPT NEW`

Prints {"pid"} of the server as soon as it is started, then {"tokens"}: how many it answered a prompt of PROMPT ids
with, NEW being asked for. The server ends with this process's input, or with the answer.

KV_BYTES: of the cache of keys and values, which vLLM otherwise makes of 92 % of the machine's memory. All else is as it
comes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request

_READY_S, _ANSWER_S, _END_S = 240.0, 120.0, 20.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def serve(model: str, kv_bytes: str, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--served-model-name", "m", "--dtype", "bfloat16", "--kv-cache-memory-bytes", kv_bytes]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    environment.pop("VLLM_CPU_KVCACHE_SPACE", None)
    # Its own messages go where this process's errors go: that is what tells why it did not start.
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def wait_until_ready(server: subprocess.Popen[bytes], url: str) -> None:
    until = time.monotonic() + _READY_S
    while time.monotonic() < until:
        if server.poll() is not None:
            raise RuntimeError(f"vLLM ended with {server.returncode}")
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"vLLM did not come up within {_READY_S:g} s")


def ask(url: str, prompt: int, new: int) -> int:
    body = {"model": "m", "prompt": list(range(3, 3 + prompt)), "max_tokens": new, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps({**body, "temperature": 0}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
        return int(json.load(answer)["usage"]["completion_tokens"])


def end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(_END_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def main() -> None:
    model, kv_bytes, prompt, new = sys.argv[1:]
    port = free_port()
    server = serve(model, kv_bytes, port)

    def with_input() -> None:
        sys.stdin.read()
        end(server)

    threading.Thread(target=with_input, daemon=True).start()
    print(json.dumps({"pid": server.pid}), flush=True)
    try:
        wait_until_ready(server, f"http://127.0.0.1:{port}")
        print(json.dumps({"tokens": ask(f"http://127.0.0.1:{port}", int(prompt), int(new))}), flush=True)
    finally:
        end(server)


main()
