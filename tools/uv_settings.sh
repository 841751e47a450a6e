# Sourced: uv does not read pip's settings; hands over the package mirror and the certificates, where pip has them.
# Needs $python, an interpreter with pip.
pip_setting() {  # from pip's files and PIP_* variables alike
    "$python" -m pip config list 2>/dev/null | sed -n "s/^\(global\|install\|:env:\)\.$1='\(.*\)'\$/\2/p" | tail -n 1
}
mirror="${UV_DEFAULT_INDEX:-$(pip_setting index-url)}"
certificates="${SSL_CERT_FILE:-$(pip_setting cert)}"
if [ -n "$mirror" ]; then export UV_DEFAULT_INDEX="$mirror"; fi
if [ -n "$certificates" ]; then export SSL_CERT_FILE="$certificates"; fi
# Certificates of the machine, as pip uses them: a company's proxy has its own.
export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-true}"
