# SPDX-License-Identifier: Apache-2.0
"""One parity packet in a fresh process: ``python -m pytest_laguna.engine.parity REQUEST.json RECORD.json``.

Nothing is timed and no model is loaded. Both selectors' real attention layers run on equal inputs, and their record is
written, or there is no record and the last line of standard error says why.
"""

from __future__ import annotations

import sys

from pytest_laguna.evidence.parity import PacketRecord, PacketRequest

from . import packets, program


def main(arguments: list[str]) -> int:
    """Run the packet; the exit code is 0 only when its record is on disk."""
    return program.answer(arguments, PacketRequest, run, packets.FAILED)


def run(request: PacketRequest) -> PacketRecord:
    """Check the environment and that there is one card, and then run the packet.

    Raises:
        RuntimeError: the environment is not the packet's, the process sees more than one card or none, or what
            ``run_packet`` raises.
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
