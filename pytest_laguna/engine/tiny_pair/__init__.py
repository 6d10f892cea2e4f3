# SPDX-License-Identifier: Apache-2.0
"""A tiny Laguna target of 48 layers and its DFlash draft, made byte for byte the same on every machine.

The target has Laguna-S-2.1's structure in small: 12 full and 36 sliding layers, two KV heads of 128, sigmoid routing
with a correction bias, a shared expert and a softplus gate for every head. The draft proposes seven tokens, of which
vLLM accepts several a cycle. ``python -m pytest_laguna.engine.tiny_pair OUT`` writes both as folders that vLLM 0.32.0
loads.
"""
