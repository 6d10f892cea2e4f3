# SPDX-License-Identifier: Apache-2.0
"""What runs inside arm processes: upstream vLLM on a lane."""
