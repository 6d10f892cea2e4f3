# SPDX-License-Identifier: Apache-2.0
"""Shared by the project's own tests and gates: pytest's plugin tester."""

pytest_plugins = ["pytester"]
