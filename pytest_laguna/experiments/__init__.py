# SPDX-License-Identifier: Apache-2.0
"""The experiments that gates run: one module each, behind the interface of ``experiment``."""
