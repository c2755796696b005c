"""How each stage works: one package for each stage, and the few modules that several stages share."""
