# SPDX-License-Identifier: Apache-2.0
"""A server whose every byte a test decides, in a thread or as a program of its own.

As a program, ``tests.endpoint_server MODE PORT MODEL ALIAS`` is what a leg takes for vLLM: it names the models,
exposes counters, writes its rank's states and answers each row, until the mode has it do something wrong. In the modes
that begin with ``ranked`` its rank is a process of its own, and each of the two ends with the other, as vLLM's do.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

ROWS_BEFORE_IT_GOES_WRONG = 1
TOKENS = [5, 6, 7, 8, 9]

Answer = Callable[[str, str, bytes], Iterable[bytes]]


class EndpointServer:
    """Answers each request with the bytes that ``answer(method, path, body)`` yields, and closes the connection.

    Attributes:
        port: where it listens.
        requests: method, path, headers and body of all that came.
    """

    def __init__(self, answer: Answer, port: int = 0) -> None:
        self._answer = answer
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self._socket.listen()
        self.port: int = self._socket.getsockname()[1]

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def serve(self) -> None:
        """Answer until the socket is closed."""
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(ConnectionError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._exchange(connection)

    def _exchange(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        words = stream.readline().decode().split()
        if not words:
            return
        headers: dict[str, str] = {}
        while line := stream.readline().decode().strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = stream.read(int(headers.get("content-length", "0")))
        self.requests.append((words[0], words[1], headers, body))
        for piece in self._answer(words[0], words[1], body):
            connection.sendall(piece)


def response(body: bytes | str, content_type: str = "application/json", status: int = 200) -> bytes:
    content = body.encode() if isinstance(body, str) else body
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def chunked(pieces: Iterable[bytes], content_type: str = "text/event-stream; charset=utf-8") -> Iterator[bytes]:
    """A body that ends with its last chunk; a caller that stops earlier breaks it off."""
    yield f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    for piece in pieces:
        yield chunk(piece)
    yield b"0\r\n\r\n"


def chunk(piece: bytes) -> bytes:
    return f"{len(piece):x}\r\n".encode() + piece + b"\r\n"


def data(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, str) else json.dumps(value)).encode() + b"\n\n"


def events(
    request_id: str = "r", model: str = "m", tokens: Iterable[list[int]] = ([5], [6, 7], [8, 9]), **changes: Any
) -> list[dict[str, Any]]:
    """The events of a whole answer, without its end marker; ``changes`` are of the usage."""
    common = {"id": f"chatcmpl-{request_id}", "object": "chat.completion.chunk", "created": 1, "model": model}
    groups = [list(group) for group in tokens]
    deltas = [
        {
            "index": 0,
            "delta": {"content": "x" * len(group)},
            "finish_reason": "length" if number == len(groups) else None,
            "token_ids": group,
        }
        for number, group in enumerate(groups, 1)
    ]
    usage = {
        "prompt_tokens": 2,
        "completion_tokens": sum(map(len, groups)),
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    return [
        {**common, "choices": [first], "prompt_token_ids": [1, 2]},
        *({**common, "choices": [delta]} for delta in deltas),
        {**common, "choices": [], "usage": usage | changes},
    ]


def stream(values: Iterable[dict[str, Any]]) -> list[bytes]:
    return [*map(data, values), data("[DONE]")]


def metrics(model: str, rows: int, tokens: int, hits: int = 0) -> str:
    label = f'engine="0",model_name="{model}"'
    values = {
        "request_decode_time_seconds_count": rows,
        "request_decode_time_seconds_sum": 0.5 * rows,
        "prompt_tokens_total": 2 * rows,
        "generation_tokens_total": tokens,
        "prefix_cache_queries_total": 0,
        "prefix_cache_hits_total": hits,
        "external_prefix_cache_queries_total": 0,
        "external_prefix_cache_hits_total": 0,
        "prompt_tokens_cached_total": 0,
        "num_preemptions_total": 0,
        "spec_decode_num_drafts_total": rows,
        "spec_decode_num_draft_tokens_total": 7 * rows,
        "spec_decode_num_accepted_tokens_total": 3 * rows,
    }
    lines = [f"vllm:{name}{{{label}}} {value}" for name, value in values.items()]
    each = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f'{each}{{position="{place}",{label}}} {rows * (place < 3)}' for place in range(7)]
    return "\n".join([*lines, f'vllm:request_success_total{{finished_reason="length",{label}}} {rows}', ""])


def models(*names: str) -> str:
    return json.dumps({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})


class Program:
    """What the program answers."""

    def __init__(self, mode: str, model: str, alias: str) -> None:
        self.mode = mode
        self.model = model
        self.alias = alias
        self.rows = 0

    def answer(self, method: str, path: str, body: bytes) -> Iterable[bytes]:
        if path == "/v1/models":
            return [response(models("another" if self.mode == "another-model" else self.model, self.alias))]
        if path == "/metrics" and self.mode == "html-metrics":
            return [response("<html>log in first</html>", "text/html")]
        if path == "/metrics":
            if self.mode == "forks-after" and self.rows and os.fork() == 0:
                while True:  # ends with its parent: by the signal that this is sent too
                    time.sleep(3600)
            # A server that was warm before the leg asked for anything.
            extra = 1 if self.mode == "warm" else 0
            hits = 2 * self.rows if self.mode == "warm-cache" else 0
            text = metrics(self.model, self.rows + extra, len(TOKENS) * (self.rows + extra), hits)
            if self.mode == "lying-counter" and self.rows:
                text = re.sub(r"(request_decode_time_seconds_count\{[^}]*\}) \d+", r"\1 7", text)
            return [response(text, "text/plain; version=0.0.4; charset=utf-8")]
        if path == "/reset_prefix_cache":
            # As vLLM does: the status says yes, and the cache stays as it is.
            return [response('{"success": false}')]
        assert (method, path) == ("POST", "/v1/chat/completions")
        return self.row(json.loads(body))

    def row(self, request: dict[str, Any]) -> Iterable[bytes]:
        assert request["model"] == self.alias
        cached = 2 if self.mode == "warm-cache" else 0
        usage: dict[str, Any] = {"prompt_tokens_details": {"cached_tokens": cached}}
        pieces = stream(events(f"{self.alias}-{self.rows:02d}", self.model, **usage))
        wrong, self.rows = self.rows == ROWS_BEFORE_IT_GOES_WRONG, self.rows + 1
        if wrong and self.mode == "html":
            yield response("<html>come back later</html>", "text/html")
            return
        for number, piece in enumerate(chunked(pieces)):
            if wrong and number == 2:
                self.go_wrong()
            yield piece

    def go_wrong(self) -> None:
        if self.mode == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.mode in {"hang", "ranked-hang"}:
            (Path(os.environ["LAGUNA_RANK_PIPES"]) / "hanging").touch()
            time.sleep(3600)


def candidate(*, active: bool) -> dict[str, Any]:
    """What a rank with one layer says of the candidate."""
    counters = {"builds": 1, "invalidations": 0, "forward_hits": 1, "update_hits": 1}
    return {
        **(counters if active else dict.fromkeys(counters, 0)),
        "flag": active,
        "model_runner": "Runner",
        "lane": "cpu" if active else None,
        "validator": "python" if active else None,
        "backends": ["FLASH_ATTN"],
        "implementations": ["laguna_kv.backend.LagunaFlashAttentionImpl" if active else "tests.Impl"],
        "target_layers": ["layer"],
        "draft_layers": [],
        "target_layers_with_state": int(active),
        "draft_layers_with_state": 0,
        "layers": {"layer": counters} if active else {},
    }


def write_state(directory: Path, moment: str, flag: str) -> None:
    words = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    graph = {"graphs": 2, "breaks": 1, "kinds": {"graph": 2, "attention": 1}, "descriptor": "8 tokens"}
    order = hashlib.sha256(b"graph,attention,graph").hexdigest()
    state = {
        "schema": "pytest-laguna-rank-state-v1",
        "moment": moment,
        "rank": 0,
        "pid": os.getpid(),
        "start_ticks": int(words[19]),
        "model_runner": "tests.Runner",
        "versions": {"vllm": "0"},
        "variables": {"FLAG": flag},
        "graphs": [{"model": "target", **graph, "order_sha256": order}],
        "candidate": candidate(active=flag == "1"),
    }
    # Written whole under another name first, and canonical as far as these values go.
    part = directory / f"{moment}.part"
    part.write_text(json.dumps(state, sort_keys=True, separators=(",", ":")))
    part.rename(directory / f"rank-0-{moment}.json")


def report(directory: Path, pipes: Path) -> None:
    write_state(directory, "captured", os.environ["FLAG"])

    def wait() -> None:
        with (pipes / "rank-0.ask").open("rb"):
            write_state(directory, "served", os.environ["FLAG"])

    threading.Thread(target=wait, daemon=True).start()


def leave_a_worker() -> None:
    """Fork a process that has a session of its own and minds no polite signal."""
    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        while True:
            time.sleep(3600)


def start_rank() -> None:
    """Have the rank be a process of its own, without which the server ends; a signal to stop is the server's matter."""
    reader, writer = os.pipe()
    rank = os.fork()
    if rank == 0:
        os.close(writer)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        report(Path(os.environ["LAGUNA_RANK_STATES"]), Path(os.environ["LAGUNA_RANK_PIPES"]))
        os.read(reader, 1)  # returns when the server has ended, however it did
        os._exit(0)
    os.close(reader)

    def end_with_it() -> None:
        os.waitpid(rank, 0)
        RANK_ENDED.set()
        if not STOPPING.is_set():
            sys.stderr.write("EngineDeadError: EngineCore encountered an issue.\n")
            sys.stderr.flush()
            os._exit(1)

    threading.Thread(target=end_with_it, daemon=True).start()


STOPPING, RANK_ENDED = threading.Event(), threading.Event()


def end_after_its_rank(*_: object) -> None:
    """Say, where the leg's evidence is not, that it stops, and do so once the rank is killed; itself it may be, too."""
    STOPPING.set()
    (Path(os.environ["LAGUNA_RANK_PIPES"]) / "stopping").touch()
    RANK_ENDED.wait()
    os._exit(0)


def main(mode: str, port: str, model: str, alias: str) -> None:
    if mode == "dies":
        sys.exit("ValueError: no such model")
    if mode == "worker":
        leave_a_worker()
    signal.signal(signal.SIGINT, lambda *_: os._exit(0))
    if mode == "ranked-slow":
        signal.signal(signal.SIGINT, end_after_its_rank)
    if mode.startswith("ranked"):
        start_rank()
    elif mode != "silent-ranks":
        report(Path(os.environ["LAGUNA_RANK_STATES"]), Path(os.environ["LAGUNA_RANK_PIPES"]))
    if not mode.endswith("never-ready"):
        EndpointServer(Program(mode, model, alias).answer, int(port)).serve()
    time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
