"""Parts of several towers: encoder layers, patch grids, tiles, projectors, and the whole encoder of SigLIP."""
