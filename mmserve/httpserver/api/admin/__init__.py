"""Routes for operators: health, versions, metrics and counts; those below ``/admin/`` need ``--enable-admin``."""
