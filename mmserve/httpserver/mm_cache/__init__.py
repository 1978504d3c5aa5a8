"""A request's images in the shared arena: choose an allocation path, lease the images, release them at the end.

Doors: ``alloc_path`` (AllocPath, AllocPaths), ``leases`` (MediaLeases), ``named_images`` (with_named),
``traffic_split`` (TrafficSplit).
"""
