"""Files -> columns, once: walks, lists, label sets, and the manifest that keeps them."""
