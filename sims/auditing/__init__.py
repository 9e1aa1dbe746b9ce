"""What an encoder leaks that was trained anywhere: measured, attacked, written, drawn."""

from sims.auditing.audit import Audit, AuditPlan, audit_encoder, write_audit, write_record

__all__ = ["Audit", "AuditPlan", "audit_encoder", "write_audit", "write_record"]
