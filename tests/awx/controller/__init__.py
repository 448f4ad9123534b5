"""A small automation controller: the part of AWX's REST API that configuring one needs, kept in memory."""
