"""A tuner's worker as its parent sees it: a process that may hang or die at any job."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

COMMAND = (sys.executable, "-m", "tilecat.tune.worker")
LAST_LINES = 2  # of a dead worker's stderr, for the report


class WorkerLost(Exception):
    """The worker died, or said nothing for too long and was killed; the text says which."""


class Worker:
    """One worker process, started at the first job and again after it was lost.

    Args:
        command: what to run.
    """

    def __init__(self, command: Sequence[str] = COMMAND):
        self.command = tuple(command)
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._stderr: Any = None
        self._reader: threading.Thread | None = None

    def run(self, job: dict[str, Any], patience_s: Callable[[dict], float]) -> Iterator[dict]:
        """The answers to one job, as they come.

        Args:
            job: for `tilecat.tune.worker`.
            patience_s: the last answer ({} at first) -> seconds to wait for the next.

        Raises:
            WorkerLost: the process died, or was killed after silence.
        """
        process = self._process or self._start()
        assert process.stdin is not None, "opened as a pipe"
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        except OSError as error:
            raise self._lost("died") from error
        answer: dict[str, Any] = {}
        while True:
            wait = patience_s(answer)
            try:
                line = self._lines.get(timeout=wait)
            except queue.Empty:
                raise self._lost(f"hung: no answer in {wait:.0f} s, killed") from None
            if line is None:
                raise self._lost("died")
            answer = json.loads(line)
            if "end" in answer:
                return
            yield answer

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if self._reader is not None:
                self._reader.join(timeout=5)
            for stream in (process.stdin, process.stdout, self._stderr):
                if stream is not None:
                    stream.close()

    def _start(self) -> subprocess.Popen[str]:
        self._stderr = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")
        self._lines = queue.Queue()
        self._process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
            text=True, encoding="utf-8",
        )  # fmt: skip
        self._reader = threading.Thread(
            target=_pump, args=(self._process.stdout, self._lines), daemon=True
        )
        self._reader.start()
        return self._process

    def _lost(self, how: str) -> WorkerLost:
        process = self._process
        assert process is not None, "a worker is lost after its start"
        try:
            code = process.wait(timeout=0 if how != "died" else 5)  # its pipes end before it does
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr if line.strip()][-LAST_LINES:]
        self.close()
        reason = f"{how} (exit code {code})" if how == "died" else how
        return WorkerLost(": ".join([reason, *([" | ".join(lines)] if lines else [])]))


def _pump(stream: Any, lines: queue.Queue[str | None]) -> None:
    try:
        for line in stream:
            lines.put(line)
    except ValueError:
        pass  # closed while it was read
    lines.put(None)
