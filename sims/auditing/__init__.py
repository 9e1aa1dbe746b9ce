"""Audit of an encoder that was trained anywhere."""

from sims.auditing.audit import Audit, AuditPlan, audit_encoder, write_audit, write_record

__all__ = ["Audit", "AuditPlan", "audit_encoder", "write_audit", "write_record"]
