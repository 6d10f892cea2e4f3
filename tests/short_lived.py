# SPDX-License-Identifier: Apache-2.0
"""How a child's program begins that imports vLLM and ends: it searches nothing for garbage, which takes long."""

SHORT_LIVED = "import atexit, gc; gc.disable(); atexit.register(gc.freeze)\n"
