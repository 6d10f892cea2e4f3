# SPDX-License-Identifier: Apache-2.0
"""Preregistered inference experiments as pytest sessions that fail closed."""
