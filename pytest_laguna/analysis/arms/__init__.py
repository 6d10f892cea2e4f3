# SPDX-License-Identifier: Apache-2.0
"""Rules over engine processes."""
