# SPDX-License-Identifier: Apache-2.0
"""Offline verification: every verdict derived again from the raw files."""
