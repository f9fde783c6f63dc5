"""Secrets of every kind that `detect-secrets` knows, to be planted: each in a variable, and a line that shows it.

They are put together here, so that nobody's scanner takes this file for a leak.
"""

from __future__ import annotations

from hashlib import sha256


def _letters(length: int, seed: str = "planted") -> str:
    text = ""
    while len(text) < length:
        text += sha256(f"{seed}{len(text)}".encode()).hexdigest()
    return text[:length]


HEX = _letters(64)
MIXED = "Zq3" + _letters(60).upper() + "xY9w"
PEM = "-----BEGIN RSA " + "PRIVATE KEY-----\n" + MIXED + "\n" + HEX + "\n-----END RSA PRIVATE KEY-----"

# The kind, by its name there -> (variable, value, a line in which the kind is recognised: `{}` is the value)
PLANTED: dict[str, tuple[str, str, str]] = {
    "Artifactory Credentials": ("ARTIFACTORY_API_KEY", "AKC" + MIXED[:20], "{}"),
    "AWS Access Key": ("AWS_ACCESS_KEY_ID", "AKIA" + HEX[:16].upper(), "id {}"),
    "Azure Storage Account access key": (
        "AZURE_STORAGE_KEY", (MIXED + HEX)[:86] + "==", "DefaultEndpointsProtocol=https;AccountKey={}",
    ),
    "Basic Auth Credentials": ("DATABASE_PASSWORD", "p4ssw0rd" + HEX[:8], "postgres://me:{}@host/db"),
    "Cloudant Credentials": ("CLOUDANT_PASSWORD", HEX, "cloudant_password = '{}'"),
    "Discord Bot Token": (
        "DISCORD_TOKEN", "M" + MIXED[:23] + "." + "Xy12-z" + "." + MIXED[:27], "{}",
    ),
    "GitHub Token": ("GITHUB_TOKEN", "ghp" + "_" + MIXED[:36], "token {}"),
    "GitLab Token": ("GITLAB_TOKEN", "glpat" + "-" + HEX[:24], "token {}"),
    "Base64 High Entropy String": ("SERVICE_SECRET", MIXED + "+/", 'secret = "{}"'),
    "Hex High Entropy String": ("SIGNING_KEY", HEX[:40], 'signing = "{}"'),
    "IBM Cloud IAM Key": ("IBM_API_KEY", MIXED[:44], "ibm_cloud_iam_api_key = '{}'"),
    "IBM COS HMAC Credentials": ("COS_SECRET", HEX[:48], "cos_hmac_secret_access_key = '{}'"),
    "JSON Web Token": ("SESSION_TOKEN", "eyJ" + "hbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxIn0." + HEX[:40], "{}"),
    "Secret Keyword": ("DEPLOY_PASSPHRASE", "correct horse battery staple", 'password = "{}"'),
    "Mailchimp Access Key": ("MAILCHIMP_KEY", HEX[:32] + "-us12", "{}"),
    "NPM tokens": ("NPM_TOKEN", "npm" + "_" + MIXED[:36], "//registry.example/:_authToken={}"),
    "OpenAI Token": ("OPENAI_API_KEY", "sk-" + MIXED[:20] + "T3Blbk" + "FJ" + MIXED[20:40], "{}"),
    "Private Key": ("SSH_PRIVATE_KEY", PEM, "{}"),
    "PyPI Token": ("TWINE_PASSWORD", "pypi-" + "AgEIcHlwaS5vcmc" + (MIXED + HEX)[:80], "{}"),
    "SendGrid API Key": ("SENDGRID_API_KEY", "SG" + "." + MIXED[:22] + "." + HEX[:43], "{}"),
    "Slack Token": ("SLACK_TOKEN", "xox" + "b-123456789012-123456789012-" + HEX[:24], "{}"),
    "SoftLayer Credentials": ("SOFTLAYER_KEY", HEX, "softlayer_api_key = '{}'"),
    "Square OAuth Secret": ("SQUARE_SECRET", "sq0" + "csp-" + MIXED[:43], "{}"),
    "Stripe Access Key": ("STRIPE_KEY", "sk" + "_live_" + HEX[:24], "{}"),
    "Telegram Bot Token": ("TELEGRAM_TOKEN", "110201543:" + MIXED[:35], "{}"),
    "Twilio API Key": ("TWILIO_KEY", "AC" + HEX[:32], "{}"),
}  # fmt: skip
ENVIRONMENT = {name: value for name, value, _ in PLANTED.values()}
LINES = {kind: line.format(value) for kind, (_, value, line) in PLANTED.items()}
