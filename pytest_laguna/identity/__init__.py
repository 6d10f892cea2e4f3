# SPDX-License-Identifier: Apache-2.0
"""The identity of an attempt: sources, packages, environment and host."""
