"""4: drafts → measured tables and figures."""
