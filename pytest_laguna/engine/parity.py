# SPDX-License-Identifier: Apache-2.0
"""One parity packet in a fresh process: ``python -m pytest_laguna.engine.parity REQUEST.json RECORD.json``.

Runs both selectors' real attention layers on equal inputs and writes their record; times nothing and loads no model. If
it fails there is no record: the last line of standard error gives the reason.
"""

from __future__ import annotations

import sys

from pytest_laguna.evidence.arms.parity import PacketRecord, PacketRequest

from . import packets, program


def main(arguments: list[str]) -> int:
    """Run the packet; return 0 only if its record is on disk."""
    return program.answer(arguments, PacketRequest, run, packets.FAILED)


def run(request: PacketRequest) -> PacketRecord:
    """Run the packet if the environment is its own and there is one card.

    Raises:
        RuntimeError: another environment, no card or several, or a failure of ``run_packet``.
    """
    environment = program.require_environment(packets.environment(request))
    with program.importing():
        from .card_identity import require_one_card  # noqa: PLC0415 - imports torch, with the environment checked
    require_one_card(request.lane)
    with program.importing():
        from .parity_packet import run_packet  # noqa: PLC0415 - imports vLLM

    return run_packet(request, environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
