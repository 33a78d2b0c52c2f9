"""Where processes run: topology discovery, placement, launchers, membership."""
