# SPDX-License-Identifier: Apache-2.0
"""The endpoint campaign: rules over legs, adjacent pairs and blocks, and their combined verdict."""

from __future__ import annotations

from pytest_laguna.analysis.endpoint.analyse import analyse_endpoint

__all__ = ["analyse_endpoint"]
