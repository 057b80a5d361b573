package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// validFor is the life of the certificates. A development cluster is thrown
// away long before.
const validFor = 365 * 24 * time.Hour

// user is one line of the token file and one kubeconfig.
type user struct {
	File  string // base name of the kubeconfig, without extension
	Name  string // as the API server sees it
	Group string // may be empty
	Token string
}

// credentials are the secrets of one cluster; the paths are what kube-apiserver
// is pointed at.
type credentials struct {
	CA     []byte // PEM
	Admin  user
	Users  []user // Admin included
	Tokens string
	Cert   string
	Key    string
	SAKey  string
}

// loadCredentials reads the secrets in dir and makes those that are missing, so
// that a restarted cluster still knows its clients.
func loadCredentials(dir, host string) (*credentials, error) {
	c := &credentials{
		Tokens: filepath.Join(dir, "tokens.csv"),
		Cert:   filepath.Join(dir, "serving.crt"),
		Key:    filepath.Join(dir, "serving.key"),
		SAKey:  filepath.Join(dir, "service-account.key"),
	}
	if err := c.loadUsers(); err != nil {
		return nil, err
	}
	ca := filepath.Join(dir, "ca.crt")
	if _, err := os.Stat(ca); errors.Is(err, fs.ErrNotExist) {
		if err := makeCertificates(ca, c, host); err != nil {
			return nil, err
		}
	}
	var err error
	if c.CA, err = os.ReadFile(ca); err != nil {
		return nil, fmt.Errorf("reading the certificate authority: %w", err)
	}
	return c, nil
}

// loadUsers gives every role its token: the remembered one, else a new one.
func (c *credentials) loadUsers() error {
	old, err := os.ReadFile(c.Tokens)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading tokens: %w", err)
	}
	known := map[string]string{}
	for line := range strings.Lines(string(old)) {
		if token, rest, ok := strings.Cut(line, ","); ok {
			name, _, _ := strings.Cut(rest, ",")
			known[name] = token
		}
	}
	c.Users = []user{
		{File: "admin", Name: "admin", Group: "system:masters"},
		{File: "kube-controller-manager", Name: "system:kube-controller-manager"},
	}
	for _, role := range roles() {
		c.Users = append(c.Users, user{File: role, Name: "millrace:" + role})
	}
	var file strings.Builder
	for i := range c.Users {
		u := &c.Users[i]
		if u.Token = known[u.Name]; u.Token == "" {
			u.Token = newToken()
		}
		fmt.Fprintf(&file, "%s,%s,%s,%s\n", u.Token, u.Name, u.Name, u.Group)
	}
	c.Admin = c.Users[0]
	if err := os.WriteFile(c.Tokens, []byte(file.String()), 0o600); err != nil {
		return fmt.Errorf("writing tokens: %w", err)
	}
	return nil
}

func newToken() string {
	b := make([]byte, 16)
	rand.Read(b) // never fails, says its contract
	return hex.EncodeToString(b)
}

// makeCertificates writes the serving pair, the service-account key and, last,
// the authority: its presence says that the others are complete, also after a
// kill in the middle. The authority's own key is not kept.
func makeCertificates(caFile string, c *credentials, host string) error {
	caKey, err := newKey()
	if err != nil {
		return err
	}
	ca := template("devcluster-ca")
	ca.IsCA = true
	ca.KeyUsage |= x509.KeyUsageCertSign
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return fmt.Errorf("signing the certificate authority: %w", err)
	}

	key, err := newKey()
	if err != nil {
		return err
	}
	serving := template("kube-apiserver")
	serving.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	serving.DNSNames = []string{"localhost", "kubernetes.default.svc"}
	serving.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	if ip := net.ParseIP(host); ip != nil {
		serving.IPAddresses = append(serving.IPAddresses, ip)
	} else {
		serving.DNSNames = append(serving.DNSNames, host)
	}
	der, err := x509.CreateCertificate(rand.Reader, serving, ca, key.Public(), caKey)
	if err != nil {
		return fmt.Errorf("signing the serving certificate: %w", err)
	}

	saKey, err := newKey()
	if err != nil {
		return err
	}
	return errors.Join(
		writeKey(c.Key, key),
		writeKey(c.SAKey, saKey),
		writePEM(c.Cert, "CERTIFICATE", der),
		writePEM(caFile, "CERTIFICATE", caDER),
	)
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating a key: %w", err)
	}
	return key, nil
}

func template(name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber:          big.NewInt(now.UnixNano()),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-time.Hour), // clocks differ a little
		NotAfter:              now.Add(validFor),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
	}
}

func writeKey(file string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encoding a key: %w", err)
	}
	return writePEM(file, "EC PRIVATE KEY", der)
}

func writePEM(file, kind string, der []byte) error {
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Base(file), err)
	}
	return nil
}
