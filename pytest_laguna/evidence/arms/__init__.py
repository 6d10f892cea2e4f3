# SPDX-License-Identifier: Apache-2.0
"""Evidence of one engine process."""
