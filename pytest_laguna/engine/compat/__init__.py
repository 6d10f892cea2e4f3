# SPDX-License-Identifier: Apache-2.0
"""The engine's only modules with vLLM's private names, each with the versions it was seen in."""
