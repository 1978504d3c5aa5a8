"""Routes below ``/admin/``, for operators. They need ``--enable-admin``."""
