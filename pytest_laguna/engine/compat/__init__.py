# SPDX-License-Identifier: Apache-2.0
"""The only modules of the engine that name what is private to vLLM; each name with the versions that it was seen in."""
