# SPDX-License-Identifier: Apache-2.0
"""What documentation says of options, commands, exit codes, rules and files is what the code says."""

from __future__ import annotations

from tools import make_reference


def test_the_reference_is_that_of_this_code() -> None:
    current = make_reference.TARGET.read_text(encoding="utf-8")
    assert current == make_reference.reference(), "run python tools/make_reference.py"


def test_it_has_every_option_command_rule_and_file() -> None:
    text = make_reference.reference()
    for word in ("`--sealed-root=DIR`", "`laguna report`", "`--junit FILE.xml`", "`receipt-derives`", "`ran-once`"):
        assert word in text
    for form in ("pytest-laguna-attempt-v1", "pytest-laguna-leg-v1", "pytest-laguna-event-profile-v1"):
        assert f"### `{form}`" in text
    assert "| `nonce` |" in text
