"""The graph of layouts that a redistribution may pass, its edges being single collectives with prices."""
