# SPDX-License-Identifier: Apache-2.0
"""What an attempt is bound to: sources, packages, environment and host."""
