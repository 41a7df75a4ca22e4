"""What the figures and tables of all experiments share: style, axes, series, settings, pages."""
